"""Makes the arithmetic of Triton's interpreter that of a GPU, so that a test on it means something.

The interpreter keeps bfloat16 and FP8 as raw bits in NumPy integers and then, in every version from 3.6 to 3.9,
computes on those bits: it truncates where a GPU rounds, adds bit patterns, and multiplies them in `tl.dot`. Upstream
declines to support it. `install()` replaces the operations in question:

    casts          round to nearest even; FP8 saturates at +-448 and keeps NaN, as `cvt.rn.satfinite` does
    arithmetic     widened to float32, computed, rounded once
    tl.dot         bfloat16 and FP8 products exact, sums in float32; float32 operands cut to TF32, as tensor cores do,
                   unless "ieee" is asked for; K of at least 16 (32 for bytes), as the compiler demands
    tl.dot_scaled  e2m1 operands with E8M0 or e4m3 scales; missing before 3.9, and wrong there for e4m3
    reductions     bfloat16 in float32, rounded once; integer sums wrap around in their own width, never an exception
    comparisons    give int1, so that splatting a scalar one keeps a mask a mask (3.9 makes it int32)
    scalars        usable as indices under NumPy 2.4 too (3.6 fails)
    warnings       none from NumPy: infinity minus infinity is NaN on a GPU without anybody saying so

What stays different from silicon: the order of sums, `exp` and friends to the last bit, and speed.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter

Array = npt.NDArray[Any]
Handle = Any
"""`interpreter.TensorHandle`: `data`, a NumPy array, and `dtype`, a Triton type."""

BYTES = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
NARROW = (tl.bfloat16, *BYTES)
"""Types whose storage NumPy has no arithmetic for."""
E4M3_MAX = 448.0
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
TF32_BITS = np.uint32(0xFFFFE000)


def widen(stored: Array, kind: Any) -> Array:
    """The float32 values of bfloat16 or FP8 bits; other arrays as they are. Exact."""
    if kind == tl.bfloat16:
        return (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if kind in BYTES:
        return _byte_values(kind)[stored.view(np.uint8)]
    return stored


def narrow(values: Array, kind: Any) -> Array:
    """Bits of `values` in bfloat16 or FP8, to nearest even; e4m3 saturates, infinity too, and NaN stays NaN."""
    exact = torch.from_numpy(np.array(values, dtype=np.float32))
    if kind == tl.bfloat16:
        return exact.bfloat16().view(torch.int16).numpy().view(np.uint16)
    if kind == tl.float8e4nv:
        exact = exact.clamp(-E4M3_MAX, E4M3_MAX)
    return exact.to(BYTES[kind]).view(torch.uint8).numpy()


@functools.cache
def _byte_values(kind: Any) -> Array:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    values: Array = codes.view(BYTES[kind]).float().numpy()
    return values


def _kind(handle: Handle) -> Any:
    return handle.dtype.scalar


def _values(handle: Handle) -> Array:
    return widen(handle.data, _kind(handle))


def _handle(data: Array, kind: Any) -> Handle:
    return interpreter.TensorHandle(data, kind)


def _rounded(values: Array, kind: Any) -> Handle:
    """Results of arithmetic on `kind`: comparisons as int1, numbers rounded to it."""
    if values.dtype == np.bool_:
        return _handle(values, tl.int1)
    return _handle(narrow(values, kind), kind)


def _cast(original: Callable[..., Handle]) -> Callable[..., Handle]:
    def cast(self: Any, source: Handle, target: Any, *rounding: Any) -> Handle:
        have, want = _kind(source), target.scalar
        if ir.ROUNDING_MODE.RTZ in rounding:
            raise NotImplementedError("a cast that rounds towards zero")
        if have == want:
            return source
        if want in NARROW:
            return _handle(narrow(_values(source), want), want)
        if have in NARROW or (have.is_floating() and want.is_floating()):
            return _handle(_values(source).astype(interpreter._get_np_dtype(want)), want)
        return original(self, source, target, *rounding)

    return cast


def _operate(original: Callable[..., Handle], operands: int) -> Callable[..., Handle]:
    def operate(self: Any, *arguments: Any) -> Handle:
        handles, operation = arguments[:operands], arguments[operands]
        kind = _kind(handles[-1])
        # Selecting moves bits and is right as it is.
        if kind in NARROW and operation is not np.where:
            return _rounded(operation(*map(_values, handles)), kind)
        result = original(self, *handles, operation)
        return _handle(result.data, tl.int1) if result.data.dtype == np.bool_ else result

    return operate


def _fma(original: Callable[..., Handle]) -> Callable[..., Handle]:
    def fma(self: Any, x: Handle, y: Handle, z: Handle) -> Handle:
        if _kind(z) not in NARROW:
            return original(self, x, y, z)
        wide = _values(x).astype(np.float64) * _values(y) + _values(z)
        return _rounded(wide, _kind(z))

    return fma


def _bf16_constant(_self: Any, value: float) -> Handle:
    return _handle(narrow(np.array([value]), tl.bfloat16), tl.bfloat16)


def _dot(_self: Any, a: Handle, b: Handle, accumulator: Handle, precision: Any, _imprecise: int) -> Handle:
    left, right = _values(a), _values(b)
    if left.dtype == np.float32 and _kind(a) == tl.float32 and precision == ir.INPUT_PRECISION.TF32:
        left, right = ((x.view(np.uint32) & TF32_BITS).view(np.float32) for x in (_dense(left), _dense(right)))
    product = np.matmul(left, right, dtype=accumulator.data.dtype)
    return _handle(product + accumulator.data, _kind(accumulator))


def _dense(array: Array) -> Array:
    return np.ascontiguousarray(array)


def _smallest_tile(left: Any, _right: Any) -> tuple[int, int, int]:
    return (1, 1, 32 if left.scalar.primitive_bitwidth == 8 else 16)


def _dot_scaled(
    _self: Any,
    a: Handle,
    a_scale: Handle | None,
    _a_format: Any,
    b: Handle,
    b_scale: Handle | None,
    _b_format: Any,
    _fast_math: bool,
    a_packs_k: bool,
    b_packs_k: bool,
    accumulator: Handle,
) -> Handle:
    # Scales are [M, K / block] on the left and [N, K / block] on the right, whose values are [K, N].
    left = _scaled(_block_values(a, -1 if a_packs_k else -2), a_scale)
    right = _scaled(_block_values(b, -2 if b_packs_k else -1).swapaxes(-1, -2), b_scale)
    return _handle(np.matmul(left, right.swapaxes(-1, -2)) + accumulator.data, tl.float32)


def _block_values(handle: Handle, packed_axis: int) -> Array:
    if _kind(handle) not in (tl.uint8, tl.int8):
        return _values(handle).astype(np.float32)
    packed = np.moveaxis(handle.data.view(np.uint8), packed_axis, -1)
    codes = np.stack((packed & 0xF, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)
    return np.moveaxis(E2M1_VALUES[codes], -1, packed_axis)


def _scaled(values: Array, scale: Handle | None) -> Array:
    if scale is None:
        return values
    # E8M0 is a power of two with bias 127; its code 255 is NaN.
    factors = _values(scale)
    if _kind(scale) not in NARROW:
        codes = factors.view(np.uint8)
        factors = np.where(codes == 255, np.nan, np.ldexp(np.float32(1), codes.astype(np.int32) - 127))
    widened = np.repeat(factors, values.shape[-1] // factors.shape[-1], axis=-1)
    scaled: Array = values * widened.astype(np.float32)
    return scaled


class _Format(str):
    """The name of a format, which 3.6 asks for its `value`."""

    __slots__ = ()

    @property
    def value(self) -> str:
        return str(self)


def _named_formats(original: Callable[..., Any]) -> Callable[..., Any]:
    def dot_scaled(*arguments: Any) -> Any:
        return original(*(_Format(given) if isinstance(given, str) else given for given in arguments))

    return dot_scaled


def _reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(self: Any, inputs: Sequence[Any]) -> Any:
        kinds = [tensor.dtype.scalar for tensor in inputs]
        if not any(kind in NARROW for kind in kinds):
            return original(self, inputs)
        wide = tuple(
            self.to_tensor(_values(tensor.handle), tl.float32) if kind in NARROW else tensor
            for tensor, kind in zip(inputs, kinds, strict=True)
        )
        results = original(self, wide)
        results = results if isinstance(results, (list, tuple)) else (results,)
        return tuple(
            self.to_tensor(narrow(np.asarray(result.handle.data).reshape(result.shape), kind), kind)
            if kind in NARROW and result.dtype == tl.float32
            else result
            for result, kind in zip(results, kinds, strict=False)
        )

    return reduce


def _wrapping_sum(self: Any, tensor: Any) -> Any:
    data = tensor.handle.data
    kind = data.dtype if np.issubdtype(data.dtype, np.integer) else None
    total = np.sum(data, axis=self.axis, keepdims=self.keep_dims, dtype=kind)
    return self.to_tensor(total, tensor.dtype)


def _scalars_as_indices(original: Callable[..., None]) -> Callable[..., None]:
    def patch(tensor: Any, *scope: Any) -> None:
        original(tensor, *scope)
        scope[0].set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patch


def _patch_known_names(package: Any, builder: Any, scope: Any) -> None:
    # Runs at every call of a device function, and looking through all members was a quarter of a test.
    for name in _builtin_names(package):
        member = getattr(package, name)
        if tl.core.is_builtin(member):
            interpreter._patch_attr(package, name, member, builder, scope)


@functools.cache
def _builtin_names(package: Any) -> tuple[str, ...]:
    return tuple(name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member))


def _silent(original: Callable[..., Any]) -> Callable[..., Any]:
    def launch(self: Any, *arguments: Any, **options: Any) -> Any:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
            return original(self, *arguments, **options)

    return launch


def install() -> None:
    """Replace the operations above in this process; a second call changes nothing."""
    builder = interpreter.InterpreterBuilder
    if getattr(builder, "honest_numbers", False):
        return
    builder.honest_numbers = True
    builder.cast_impl = _cast(builder.cast_impl)
    builder.create_fp_to_fp = _cast(builder.create_fp_to_fp)
    builder.unary_op = _operate(builder.unary_op, 1)
    builder.binary_op = _operate(builder.binary_op, 2)
    builder.ternary_op = _operate(builder.ternary_op, 3)
    builder.create_fma = _fma(builder.create_fma)
    builder.create_fneg = lambda self, operand: self.unary_op(operand, np.negative)
    builder.get_bf16 = _bf16_constant
    builder.create_dot = _dot
    builder.create_dot_scaled = _dot_scaled
    interpreter.interpreter_builder.codegen_fns["min_dot_size"] = _smallest_tile
    semantic = interpreter.TritonSemantic
    semantic.dot_scaled = _named_formats(semantic.dot_scaled)
    interpreter.ReduceOps.apply_impl = _reduce(interpreter.ReduceOps.apply_impl)
    interpreter.ReduceOps.sum = _wrapping_sum
    interpreter.ScanOps.apply_impl = _reduce(interpreter.ScanOps.apply_impl)
    interpreter._patch_lang_tensor = _scalars_as_indices(interpreter._patch_lang_tensor)
    interpreter._patch_builtin = _patch_known_names
    interpreter.GridExecutor.__call__ = _silent(interpreter.GridExecutor.__call__)
