"""Planning and simulation of workflows will live here; nothing does yet."""
