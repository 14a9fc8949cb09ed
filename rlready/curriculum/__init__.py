"""Which tasks to roll out (`samplers`) and which groups are worth an update (`gates`): a `rollout.base.Curriculum`."""
