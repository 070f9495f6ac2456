"""Rewrite a JAX program in operations that jax2onnx can convert to a working ONNX graph.

The program is traced once for any batch size and evaluated equation by equation. `RULES` replace
operations that jax2onnx (0.17) or onnxruntime cannot handle with an unknown batch size.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

Values = Sequence[Any]


def plain(function: Callable[..., Any], *specs: jax.ShapeDtypeStruct) -> Callable[..., list[Any]]:
    """The same function for arguments like `specs`, in plain operations. Returns its leaves."""
    program = jax.make_jaxpr(function)(*specs)
    return lambda *values: _run(program, values)


def _run(program: ClosedJaxpr, values: Values) -> list[Any]:
    return _evaluate(program.jaxpr, program.consts, values)


def _evaluate(program: Jaxpr, constants: Values, values: Values) -> list[Any]:
    known = dict(zip((*program.constvars, *program.invars), (*constants, *values), strict=True))

    def value(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else known[variable]

    for equation in program.eqns:
        name = equation.primitive.name
        rule = RULES.get(name, equation.primitive.bind)
        found = rule(*map(value, equation.invars), **equation.params)
        found = found if isinstance(found, list | tuple) else [found]
        known.update(zip(equation.outvars, found, strict=True))
    return [value(variable) for variable in program.outvars]


def _jit(*values: Any, jaxpr: ClosedJaxpr, **_: Any) -> list[Any]:
    return _run(jaxpr, values)


def _custom(*values: Any, call_jaxpr: ClosedJaxpr, **_: Any) -> list[Any]:
    return _run(call_jaxpr, values)


def _scan(*values: Any, jaxpr: ClosedJaxpr, num_consts: int, num_carry: int, **how: Any) -> Any:
    """Keep the scan, with a body of plain operations."""
    constants, first = values[:num_consts], list(values[num_consts:][:num_carry])

    def body(carry, row):
        found = _run(jaxpr, [*constants, *carry, *row])
        return found[:num_carry], found[num_carry:]

    rows = list(values[num_consts + num_carry :])
    carry, stacked = lax.scan(body, first, rows, how["length"], how["reverse"])
    return [*carry, *stacked]


def _pad(x: Any, value: Any, *, padding_config: Any) -> Array:
    """Concatenate blocks of the value: jax2onnx's Pad needs a known batch size."""
    for axis, (before, after, _) in enumerate(padding_config):
        shape = [(*x.shape[:axis], int(n), *x.shape[axis + 1 :]) for n in (before, after)]
        blocks = [lax.broadcast(value, s) if s[axis] else None for s in shape]
        parts = [part for part in (blocks[0], x, blocks[1]) if part is not None]
        x = lax.concatenate(parts, axis) if len(parts) > 1 else x
    return x


def _select(which: Any, *cases: Any) -> Array:
    """Select booleans by logic: onnxruntime's Where does not support them."""
    if cases[0].dtype != bool:
        return lax.select_n(which, *cases)
    no, yes = cases
    return (which & yes) | (~which & no)


def _stack(*values: Any, axis: int) -> Array:
    return lax.concatenate([lax.expand_dims(value, (axis,)) for value in values], axis)


def _cumprod(x: Any, *, axis: int, reverse: bool) -> Array:
    """Multiply factor by factor: ONNX has CumProd only from opset 26."""
    factors = [lax.slice_in_dim(x, i, i + 1, axis=axis) for i in range(x.shape[axis])]
    if not factors:
        return x
    products = factors[-1:] if reverse else factors[:1]
    for factor in factors[-2::-1] if reverse else factors[1:]:
        products.append(products[-1] * factor)
    return lax.concatenate(products[::-1] if reverse else products, axis)


def _gather(table: Any, index: Any, **how: Any) -> Array:
    """Pick a row of a small table by a sum: jax2onnx's Gather is wrong for some batch sizes."""
    numbers = how["dimension_numbers"]
    rows = numbers.start_index_map[0] == 0 and how["slice_sizes"] == (1, *table.shape[1:])
    if numbers.operand_batching_dims or not rows:
        return lax.gather_p.bind(table, index, **how)
    shape = (index.shape[0], *table.shape)
    number = lax.broadcasted_iota(index.dtype, shape, 1)
    mine = number == lax.broadcast_in_dim(index[:, 0], shape, (0,))
    every = lax.broadcast_in_dim(table, shape, tuple(range(1, len(shape))))
    found = lax.reduce_sum(lax.select(mine, every, lax.full_like(every, 0)), (1,))
    return found if numbers.collapsed_slice_dims else lax.expand_dims(found, (1,))


RULES: dict[str, Callable[..., Any]] = {
    "jit": _jit,
    "custom_jvp_call": _custom,
    "custom_vjp_call": _custom,
    "stop_gradient": lambda x: x,
    "scan": _scan,
    "pad": _pad,
    "select_n": _select,
    "stack": _stack,
    "cumprod": _cumprod,
    "gather": _gather,
}
