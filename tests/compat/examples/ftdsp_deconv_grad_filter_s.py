from random import randint

import numpy as np

from npusim.compat.ftdsp import fp_deconv_grad_filter_s

# Input: 4x4, 4 channels, a batch of 16
input_batch = 16
output_batch = input_batch
input_h = 4
input_w = 4
input_channel = 4

# Output gradient (dy)
output_h = input_h
output_w = input_w
output_channel = input_channel

# Kernel: 4x4
kernel_h = 4
kernel_w = 4

stride_h = 1
stride_w = 1
pad_u = 0
pad_l = 0
dilation_h = 1
dilation_w = 1
group = 1

# C points to fixed addresses; here the arrays are made
x = np.empty(input_batch * input_h * input_w * input_channel, np.float32)
dy = np.empty(output_batch * output_h * output_w * output_channel, np.float32)
dw = np.empty(kernel_h * kernel_w * output_channel * input_channel // group, np.float32)
temp_space = 0x10050000

for i in range(input_batch * input_h * input_w * input_channel):
    x[i] = randint(0, 9) / 50.0 + 0.1
for i in range(output_batch * output_h * output_w * output_channel):
    dy[i] = randint(0, 9) / 50.0 + 0.1
for i in range(kernel_h * kernel_w * output_channel * input_channel // group):
    dw[i] = 0.0

# 1. the parameters
params = [0] * 20
params[0] = input_batch
params[1] = input_h
params[2] = input_w
params[3] = input_channel
params[4] = output_batch
params[5] = output_h
params[6] = output_w
params[7] = output_channel
params[8] = kernel_h
params[9] = kernel_w
params[10] = stride_h
params[11] = stride_w
params[12] = pad_u
params[13] = pad_l
params[14] = dilation_h
params[15] = dilation_w
params[16] = group
params[17] = temp_space

core_mask = 0b1111
result = fp_deconv_grad_filter_s(dy, x, dw, params, core_mask)
