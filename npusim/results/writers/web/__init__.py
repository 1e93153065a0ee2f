"""Web pages of calls, networks and studies: one file each, readable without a server."""
