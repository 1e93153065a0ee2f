"""The operators and their modules, and the lists of them."""

from .catalog import CARDS as CARDS
from .catalog import OPERATORS as OPERATORS
from .catalog import operators as operators
from .compiled import conv2d_backprop_filter as conv2d_backprop_filter
from .compiled import conv2d_backprop_input as conv2d_backprop_input
from .compiled import conv3d_backprop_filter as conv3d_backprop_filter
from .compiled import conv3d_backprop_input as conv3d_backprop_input
from .compiled import depthwise_conv2d_backprop_filter as depthwise_conv2d_backprop_filter
from .compiled import depthwise_conv2d_backprop_input as depthwise_conv2d_backprop_input
from .conv_backward import convolution_backward as convolution_backward
from .conv_forward import convolution as convolution
from .dsp_gradients import conv_grad_filter as conv_grad_filter
from .dsp_gradients import conv_grad_input as conv_grad_input
from .dsp_gradients import deconv_grad_filter as deconv_grad_filter
from .dsp_gradients import deconv_grad_input as deconv_grad_input
from .matrix_product import matmul as matmul
from .windows import im2col as im2col
from .windows import im2col_backward as im2col_backward

__all__: list[str]
