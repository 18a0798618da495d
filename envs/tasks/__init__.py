"""Tasks of ours, one file each; `envs.make` imports the one it makes."""
