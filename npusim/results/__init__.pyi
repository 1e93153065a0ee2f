"""Results, and what compares them."""

from npusim.results.comparison import Comparison as Comparison
from npusim.results.comparison import compare as compare
from npusim.results.network_comparison import NetworkComparison as NetworkComparison
from npusim.results.network_comparison import compare_networks as compare_networks
from npusim.results.result import Result as Result
