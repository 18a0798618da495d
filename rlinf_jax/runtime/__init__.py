"""Where programs run: meshes, and the arrays that live on them."""
