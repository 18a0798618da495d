"""Which tasks need not wait any more."""

from rlinf_jax.runtime import readiness, tasks


def make(*waits):
  """Returns the readiness of tasks that wait for (source, lag, after)."""
  return readiness.Readiness(
    tasks.TaskPlan(
      tasks=(None,) * len(waits),
      waits=tuple(
        tuple(tasks.Wait(source=s, lag=lag, after=after) for s, lag, after in w)
        for w in waits
      ),
      ahead={},
      plan=None,
    )
  )


def test_a_task_is_ready_when_the_last_that_it_waits_for_has_happened():
  ready = make([], [(0, 0, "start")], [(0, 0, "end"), (1, 0, "end")])
  assert ready.begin(0) == [(0, 0)]
  assert ready.start((0, 0)) == [(0, 1)]
  assert ready.start((0, 1)) == []
  assert ready.end((0, 1)) == []
  assert ready.waiting() == [(0, 2)]
  assert ready.end((0, 0)) == [(0, 2)]


def test_waits_for_iterations_before_the_first_are_none():
  ready = make([(0, 2, "end")])
  assert ready.begin(0) == [(0, 0)]
  assert ready.begin(1) == [(1, 0)]
  assert ready.begin(2) == []
  assert ready.end((0, 0)) == [(2, 0)]


def test_what_has_happened_before_an_iteration_begins_counts():
  ready = make([(1, 1, "end")], [])
  ready.begin(0)
  assert ready.end((0, 1)) == []
  assert ready.begin(1) == [(1, 0), (1, 1)]


def test_nobody_waits_for_iterations_that_will_not_run():
  # Task 0 of iteration i waits for task 1 of iteration i + 1 to start.
  ready = make([(1, -1, "start")], [])
  assert ready.begin(0) == [(0, 1)]
  assert ready.stop_at(1) == [(0, 0)]
  assert ready.waiting() == []


def test_what_a_later_iteration_waits_for_outlives_its_own():
  ready = make([(0, 1, "end")])
  ready.begin(0)
  ready.end((0, 0))
  ready.retire(0)
  assert ready.begin(1) == [(1, 0)]
  ready.end((1, 0))
  ready.retire(1)
  ready.begin(2)
  ready.end((2, 0))
  ready.retire(2)
  assert (0, 0) not in ready.ended
