"""Environments of other packages, as `Env`s of ours.

Each module here has `make(name, *, physics, config, randomise, num_threads)`,
which `envs.make` calls for "playground:NAME", "brax:NAME" and
"gymnasium:NAME". The packages are optional and are imported when asked for.
"""
