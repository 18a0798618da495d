"""The legs: each has `speed` and `learning`, (Job, Setting) -> JSON values."""
