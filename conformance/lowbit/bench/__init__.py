"""What judging costs, and how fast what is judged is; most modules are commands: `python -m lowbit.bench.weights`."""
