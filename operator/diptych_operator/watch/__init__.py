"""Input: kopf's watches and periodic lists fill the cache and queue affected Agents.

handlers   kopf's event handlers and settings; which kinds and namespaces are watched
resync     lists everything, before the watches start and once a minute after that
staleness  for how long a watch has been silent
"""
