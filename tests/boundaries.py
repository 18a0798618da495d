"""The laws of DESIGN.md section 4: each names what in a file breaks it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).parents[1]
OURS = ("rlinf_jax", "scheduler", "envs", "experiments", "benchmarks", "tests")
LIBRARY = ("rlinf_jax", "scheduler", "envs")

# Who may import what of ours besides itself. The longest matching row decides.
_RLINF_JAX = {
  "types": (),
  "flow": (),
  "losses": ("types",),
  "models": ("types",),
  "data": ("types",),
  "checkpoints": ("types",),
  "reporting": ("types",),
  "rewards": ("types",),
  "export": ("types",),
  "algorithms": ("types", "flow", "losses", "models"),
  "runtime": ("types", "flow"),
  "rollout": ("types", "runtime.transport"),
  # Wires the rows above into a run, as a library; envs arrive as arguments.
  "training": (
    "types", "flow", "losses", "models", "data", "rewards", "checkpoints",
    "reporting", "algorithms", "runtime", "rollout",
  ),
}  # fmt: skip
MAY_IMPORT: dict[str, tuple[str, ...]] = {
  "scheduler": (),
  "envs": (),
  "experiments": LIBRARY,
  "benchmarks": OURS,
  **{
    f"rlinf_jax.{row}": tuple(f"rlinf_jax.{name}" for name in allowed)
    for row, allowed in _RLINF_JAX.items()
  },
}
MAY_IMPORT["rlinf_jax.runtime"] += ("scheduler",)

MESH_BUILDER = "rlinf_jax/runtime/meshes.py"
ROLLOUT_CHILD = "rlinf_jax/rollout/vllm/child/"
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "core"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """One file: `path` from the root with slashes, and its text."""

  path: str
  text: str

  @functools.cached_property
  def tree(self) -> ast.Module:
    return ast.parse(self.text, filename=self.path)

  @property
  def root(self) -> str:
    return self.path.split("/")[0]

  @property
  def is_package(self) -> bool:
    return self.path.endswith("/__init__.py")

  @property
  def module(self) -> str:
    name = self.path.removesuffix(".py").removesuffix("/__init__")
    return name.replace("/", ".")


Law = Callable[[Source], list[str]]


def imports(source: Source) -> Iterator[tuple[ast.AST, str]]:
  """Yields every import, wherever it stands, as (node, dotted name).

  `from a import b` is a.b, whether b is a module or a name in one.
  """
  package = source.module.split(".")
  if not source.is_package:
    package = package[:-1]
  for node in ast.walk(source.tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield node, alias.name
    elif isinstance(node, ast.ImportFrom):
      base = package[: len(package) - node.level + 1] if node.level else []
      parts = base + ([node.module] if node.module else [])
      for alias in node.names:
        yield node, ".".join([*parts, alias.name])
    elif isinstance(node, ast.Call) and node.args:
      if dotted(node.func) in ("importlib.import_module", "__import__"):
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
          yield node, name.value


def dotted(node: ast.AST) -> str:
  """Returns "a.b.c" for such an expression, else its last names, or ""."""
  if isinstance(node, ast.Name):
    return node.id
  if isinstance(node, ast.Attribute):
    return f"{dotted(node.value)}.{node.attr}".lstrip(".")
  return ""


def is_within(name: str, module: str) -> bool:
  return name == module or name.startswith(f"{module}.")


def at(source: Source, node: ast.AST, what: str) -> str:
  return f"{source.path}:{getattr(node, 'lineno', 1)}: {what}"


def imports_along_the_table(source: Source) -> list[str]:
  """Everyone imports along MAY_IMPORT, which is DESIGN.md's table."""
  if source.path == "rlinf_jax/__init__.py":
    row, allowed = "rlinf_jax", ()
  else:
    rows = [row for row in MAY_IMPORT if is_within(source.module, row)]
    if not rows:
      return [f"{source.path}: no row of the table says what it may import"]
    row = max(rows, key=len)
    allowed = MAY_IMPORT[row]
  return [
    at(source, node, f"{row} imports {name}; it may import of ours {allowed}")
    for node, name in imports(source)
    if name.split(".")[0] in OURS
    and not any(is_within(name, module) for module in (row, *allowed))
  ]


def scheduler_is_light(source: Source) -> list[str]:
  """scheduler imports no JAX ever, and a solver only in a function."""
  if source.root != "scheduler":
    return []
  of_jax = {"jax", "jaxlib", "flax", "optax", "chex", "orbax", "mujoco", "brax"}
  light = {*sys.stdlib_module_names, "numpy", "scheduler"}
  in_functions = {
    id(inner)
    for node in ast.walk(source.tree)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for inner in ast.walk(node)
  }
  broken = []
  for node, name in imports(source):
    root = name.split(".")[0]
    if root in of_jax:
      broken.append(at(source, node, f"scheduler imports {name}, which is JAX"))
    elif root not in light and id(node) not in in_functions:
      broken.append(at(source, node, f"import {name} where it is used, lazily"))
  return broken


def torch_stays_in_the_rollout_child(source: Source) -> list[str]:
  """Only the rollout child process imports vllm or torch."""
  if source.root not in LIBRARY or source.path.startswith(ROLLOUT_CHILD):
    return []
  return [
    at(source, node, f"imports {name}; only {ROLLOUT_CHILD} may")
    for node, name in imports(source)
    if name.split(".")[0] in ("torch", "vllm")
  ]


def meshes_are_built_in_one_place(source: Source) -> list[str]:
  """Only runtime/meshes.py builds meshes, and it states axis_types."""
  if source.root not in (*LIBRARY, "experiments"):
    return []
  broken = []
  for node in ast.walk(source.tree):
    if not isinstance(node, ast.Call):
      continue
    name = dotted(node.func)
    if name.split(".")[-1] not in ("make_mesh", "Mesh", "create_device_mesh"):
      continue
    if is_within(name, "meshes"):
      continue  # meshes.make_mesh(...): asks the builder for one
    if source.path != MESH_BUILDER:
      broken.append(at(source, node, f"calls {name}; only {MESH_BUILDER} may"))
    elif not name.endswith("create_device_mesh"):
      if "axis_types" not in {keyword.arg for keyword in node.keywords}:
        broken.append(at(source, node, f"{name} does not state axis_types"))
  return broken


def flags_are_read_by_experiments(source: Source) -> list[str]:
  """Only experiments and benchmarks read flags."""
  if source.root not in LIBRARY:
    return []
  return [
    at(source, node, f"imports {name}; take an argument instead")
    for node, name in imports(source)
    if any(is_within(name, m) for m in ("absl.flags", "absl.app", "argparse"))
  ]


def the_environment_is_not_written(source: Source) -> list[str]:
  """No module writes os.environ: the Makefile does, or a child's env=."""
  if source.root == "tests":
    return []
  writers = {"update", "setdefault", "pop", "popitem", "clear", "__setitem__"}
  broken = []
  for node in ast.walk(source.tree):
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
      is_write = dotted(node.value).split(".")[-1] == "environ"
    elif isinstance(node, ast.AugAssign):
      is_write = dotted(node.target).split(".")[-1] == "environ"
    elif isinstance(node, ast.Call):
      *owner, method = dotted(node.func).split(".")
      is_write = method in ("putenv", "unsetenv") or (
        owner[-1:] == ["environ"] and method in writers
      )
    else:
      is_write = False
    if is_write:
      broken.append(at(source, node, "writes the process's environment"))
  return broken


def files_are_named_for_what_they_hold(source: Source) -> list[str]:
  """utils, common, helpers, misc and core are no names."""
  return [
    f"{source.path}: '{name}' says nothing; name what is inside"
    for name in source.path.removesuffix(".py").split("/")
    if name.lstrip("_") in EMPTY_NAMES
  ]


def modules_are_imported_not_names(source: Source) -> list[str]:
  """Of ours one imports modules; only types.py and __init__ deal in names.

  The scheduler's vocabulary is a few dozen frozen dataclasses with plain names:
  there a class may be imported by name, a function may not, unless its module
  is named after it, as each planner's is.
  """
  if source.is_package:
    return []
  return [
    at(source, node, f"from {node.module} import {alias.name}: not a module")
    for node in ast.walk(source.tree)
    if isinstance(node, ast.ImportFrom) and node.module and not node.level
    if node.module.split(".")[0] in OURS
    and node.module.split(".")[-1] != "types"
    for alias in node.names
    if not is_module(f"{node.module}.{alias.name}")
    if not is_plain_name(node.module, alias.name)
  ]


def is_plain_name(module: str, name: str) -> bool:
  """Returns whether the scheduler lets a name of its be imported alone."""
  is_own = module.split(".")[-1] == name
  return is_within(module, "scheduler") and (name[:1].isupper() or is_own)


def is_module(name: str) -> bool:
  path = ROOT / name.replace(".", "/")
  return path.is_dir() or path.with_suffix(".py").is_file()


LAWS: tuple[Law, ...] = (
  imports_along_the_table,
  scheduler_is_light,
  torch_stays_in_the_rollout_child,
  meshes_are_built_in_one_place,
  flags_are_read_by_experiments,
  the_environment_is_not_written,
  files_are_named_for_what_they_hold,
  modules_are_imported_not_names,
)
# Tests are read for their names alone: what they import, they test.
LAWS_OF_TESTS = (files_are_named_for_what_they_hold,)
