"""Real weights as input: the tensors of safetensors files.

    files        what a file holds, read in runs of bounded length
    quantized    a checkpoint that is quantised already: its layers, and what is left over
    layouts      which layer is stored how: `words` AWQ and GPTQ, `bitsandbytes`, `compressed` compressed-tensors
    layer        one quantised layer; `config` what the checkpoint says of it
    figures      what quantisation does to the weights of a file

What no scheme stands for, or contradicts its config, is told by name with the reason.
"""
