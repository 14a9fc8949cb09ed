"""How good value estimates are, and what they do to the update (VinePPO, arXiv 2410.01679, sec. 6).

    visit                the states that a policy's own answers go through
    prediction           estimates against a ground truth of many rollouts, by position; is an estimator unbiased?
    alternatives         several next steps at a state
    ranking              of these, does an estimator know the better one?
    gradient_variance    how much does an update's gradient change from batch to batch of the same policy?
    advantages           what advantages does an algorithm give, by position?
    analyse              all of it, as tables

An *estimator* is `async (states) -> values`: `probes(...)` (k fresh samples each) and `critic(policy)` are two. Ground
truth is probes too, many of them, with a seed of their own: an estimator's samples are never the truth's.

`rlready values RUN` does all of it for a run; a recipe calls the functions.
"""

from rlready.values.analysis import Analysis, Sizes, analyse
from rlready.values.estimators import Estimator, Visited, critic, probes, visit
from rlready.values.gradient import Bin, Variance, advantages, batches_of, by_position, gradient_variance
from rlready.values.prediction import Accuracy, Prediction, prediction
from rlready.values.ranking import Choice, Order, Ranking, alternatives, ranking

__all__ = [
    "Accuracy", "Analysis", "Bin", "Choice", "Estimator", "Order", "Prediction", "Ranking", "Sizes", "Variance",
    "Visited", "advantages", "alternatives", "analyse", "batches_of", "by_position", "critic", "gradient_variance",
    "prediction", "probes", "ranking", "visit",
]  # fmt: skip
