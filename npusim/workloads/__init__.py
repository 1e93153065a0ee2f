"""Networks as graphs of layers: from the files that ship, from one's own, from ONNX and PyTorch."""

from npusim.workloads.elementwise import ElementwiseLayer as ElementwiseLayer
from npusim.workloads.from_yaml import workload_yaml as workload_yaml
from npusim.workloads.graph import INPUT as INPUT
from npusim.workloads.graph import Edge as Edge
from npusim.workloads.graph import GraphBuilder as GraphBuilder
from npusim.workloads.graph import Input as Input
from npusim.workloads.graph import Node as Node
from npusim.workloads.graph import Parameter as Parameter
from npusim.workloads.graph import Workload as Workload
from npusim.workloads.layers import ConvLayer as ConvLayer
from npusim.workloads.layers import Layer as Layer
from npusim.workloads.layers import LinearLayer as LinearLayer
from npusim.workloads.reading import find_layer as find_layer
from npusim.workloads.reading import load_workload as load_workload
from npusim.workloads.reading import read_network as read_network
from npusim.workloads.reading import workloads as workloads
