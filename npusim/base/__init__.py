"""What every room stands on: errors, integers, quantities, files, processes; no device, no call."""
