"""`/v1/runs`: runs as resources, and their events as streams."""
