"""The OpenAPI document of the agent: what `/openapi.json` and `docs/reference/http.md` show.

`operations` is loaded with the routes. `document` and `schemas` are loaded, and the document is
built, when it is first asked for.
"""
