"""Programs as answers."""
from rlready.rewards.code.pool import CodePool
from rlready.rewards.code.outputs import grade_code_stdout
from rlready.rewards.code.values import grade_code_value
