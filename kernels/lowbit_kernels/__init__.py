"""Production Triton kernels for low-bit formats; every one is judged bit for bit by `lowbit`.

    quantize_mx4, dequantize_mx4            FBGEMM's MX4 stream
    quantize_mxfp4, dequantize_mxfp4        OCP MXFP4: blocks of 32, E8M0 scales
    quantize_nvfp4, dequantize_nvfp4        NVFP4: blocks of 16, E4M3 scales, a tensor scale
    dequantize_awq, dequantize_gptq         int4 words (GPTQ also 2, 3 and 8 bits), scales and zero points a group
    dequantize_nf4, dequantize_fp4          bitsandbytes' 4-bit codebooks, nested absmax too
    dequantize_int8                         int8, a scale an output channel
    dequantize_squeezellm                   3- and 4-bit lookup tables, sparse terms
    swizzle_scales, unswizzle_scales        the scale layout of block-scaled matmuls
    nvfp4_mm, mxfp4_mm                      block-scaled matrix products, decoded in registers
    recip_scale                             the decode factor 1 / g that a matmul wants
    pad_last_dimension                      zeros up to a whole block, for formats that refuse a short one

Functional, with keyword-only options; they run on the tensor's device and the current stream, never wait for it, work
under torch.compile as registered ops, and take `out=`. With TRITON_INTERPRET=1, set before triton is imported, the same
kernels run on CPU tensors.
"""

from lowbit_kernels._launch import pad_last_dimension
from lowbit_kernels.awq import dequantize_awq
from lowbit_kernels.gptq import dequantize_gptq
from lowbit_kernels.int8 import dequantize_int8
from lowbit_kernels.matmul import mxfp4_mm, nvfp4_mm
from lowbit_kernels.mx4 import dequantize_mx4, quantize_mx4
from lowbit_kernels.mxfp4 import dequantize_mxfp4, quantize_mxfp4
from lowbit_kernels.nf4 import dequantize_fp4, dequantize_nf4
from lowbit_kernels.nvfp4 import dequantize_nvfp4, quantize_nvfp4, recip_scale
from lowbit_kernels.squeezellm import dequantize_squeezellm
from lowbit_kernels.swizzle import swizzle_scales, unswizzle_scales

__version__ = "0.1.0"

__all__ = [
    "dequantize_awq",
    "dequantize_fp4",
    "dequantize_gptq",
    "dequantize_int8",
    "dequantize_mx4",
    "dequantize_mxfp4",
    "dequantize_nf4",
    "dequantize_nvfp4",
    "dequantize_squeezellm",
    "mxfp4_mm",
    "nvfp4_mm",
    "pad_last_dimension",
    "quantize_mx4",
    "quantize_mxfp4",
    "quantize_nvfp4",
    "recip_scale",
    "swizzle_scales",
    "unswizzle_scales",
]
