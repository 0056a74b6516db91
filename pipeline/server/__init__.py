"""The HTTP API and the console over one application, `dueline server` (DESIGN §9)."""
