"""Workload files: networks as named convolution and linear layers, and their graph, in YAML."""

from npusim.workloads.from_yaml.files import workload as workload
from npusim.workloads.from_yaml.writing import workload_yaml as workload_yaml
