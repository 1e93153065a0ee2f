"""The version of npusim, the only place it is written."""

VERSION = "0.1.0"
