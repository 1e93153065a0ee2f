"""The operators, where each is, and what they say of themselves."""

from collections.abc import Mapping
from typing import Any

from npusim.ops.card import Card
from npusim.ops.compiled import conv2d_backprop_filter as conv2d_backprop_filter
from npusim.ops.compiled import conv2d_backprop_input as conv2d_backprop_input
from npusim.ops.compiled import conv3d_backprop_filter as conv3d_backprop_filter
from npusim.ops.compiled import conv3d_backprop_input as conv3d_backprop_input
from npusim.ops.compiled import depthwise_conv2d_backprop_filter as depthwise_conv2d_backprop_filter
from npusim.ops.compiled import depthwise_conv2d_backprop_input as depthwise_conv2d_backprop_input
from npusim.ops.convolution import convolution as convolution
from npusim.ops.convolution_backward import convolution_backward as convolution_backward
from npusim.ops.dsp_gradients import conv_grad_filter as conv_grad_filter
from npusim.ops.dsp_gradients import conv_grad_input as conv_grad_input
from npusim.ops.dsp_gradients import deconv_grad_filter as deconv_grad_filter
from npusim.ops.dsp_gradients import deconv_grad_input as deconv_grad_input
from npusim.ops.matmul import matmul as matmul
from npusim.ops.windows import im2col as im2col
from npusim.ops.windows import im2col_backward as im2col_backward

CARDS: Mapping[str, Card[Any]]
OPERATORS: Mapping[str, Any]

def operators() -> list[str]: ...
