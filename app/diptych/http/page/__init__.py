"""`/`: a page to talk to the agent and to watch its runs.

The page is `index.html` with the modules and the style beside it, as they are: nothing builds them.
What each module is for stands at its top. `vendor/` holds what others wrote.
"""
