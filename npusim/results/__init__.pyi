"""Results, and what compares them."""

from .comparison import Comparison as Comparison
from .comparison import compare as compare
from .network_comparison import NetworkComparison as NetworkComparison
from .network_comparison import compare_networks as compare_networks
from .result import Result as Result
