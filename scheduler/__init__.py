"""Planning and simulation of workflows on clusters, without JAX.

A `workflows.Workflow` says what has to be done, a `profiles.Profile` how long
it takes, a `clusters.Cluster` on what; a planner returns a `plans.Plan`, a
checker says whether it can run, and an evaluator, a simulator and an exact
solver how long it takes and how far that is from the best.

Nothing here imports JAX, and solvers only when they are used.
"""
