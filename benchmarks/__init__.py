"""Side-by-side runs against other programs; see README.md."""
