"""The machine: devices, instructions, programs, numbers and time; it knows no convolution."""
