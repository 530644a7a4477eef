"""Everything that talks to the API server: login, client, caches, work queue, events."""
