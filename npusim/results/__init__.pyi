"""Results, and what compares them."""

from .facts.comparison import Comparison as Comparison
from .facts.comparison import compare as compare
from .facts.network_comparison import NetworkComparison as NetworkComparison
from .facts.network_comparison import compare_networks as compare_networks
from .result import Result as Result
