"""Checks before the first training step: what goes silently wrong is found in seconds, not after a night.

    findings = audit(Setup(policy, tasks, env, "grpo"))

A first batch is rolled out and the first update recorded, without a step; learner and sampler are put back as they
were. `CHECKS` lists every check with what it finds, why that matters and what to do about it; `docs/doctor.md` shows
them, and the twenty public faults that they were tried on. `audit_file` looks at trajectories that another tool wrote.
"""

from __future__ import annotations

from rlready.doctor.audit import audit
from rlready.doctor.catalogue import CHECKS
from rlready.doctor.credit import check_mask
from rlready.doctor.setup import Setup
from rlready.doctor.tokens import check_template

__all__ = ["CHECKS", "Setup", "audit", "check_mask", "check_template"]
