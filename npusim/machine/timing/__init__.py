"""Time: the shared memory system, the engine that runs a program, and the rows it leaves."""
