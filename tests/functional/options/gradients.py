"""Reverse-mode differentiation of numpy arrays: each operation stores its operands and, for each of them, the vector-Jacobian product."""
import itertools
import math

import numpy as np

ORDER = itertools.count()


def fit(gradient, shape):
    """Returns the gradient of a broadcast operand, which is the sum over its copies."""
    if gradient.shape == shape:
        return gradient
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    return gradient.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1 and gradient.shape[i] != 1), keepdims=True)


def swap(x):
    return np.swapaxes(x, -1, -2)


class Var:
    def __init__(self, value, *operands):
        self.value, self.order, self.gradient = np.asarray(value, np.float64), next(ORDER), None
        self.operands = [pair for pair in operands if not isinstance(pair[0], Constant)]

    shape = property(lambda self: self.value.shape)

    def __add__(self, other):
        a, b = self, of(other)
        return Var(a.value + b.value, (a, lambda g: fit(g, a.shape)), (b, lambda g: fit(g, b.shape)))

    def __mul__(self, other):
        a, b = self, of(other)
        return Var(a.value * b.value, (a, lambda g: fit(g * b.value, a.shape)), (b, lambda g: fit(g * a.value, b.shape)))

    def __matmul__(self, other):
        a, b = self, other
        return Var(a.value @ b.value, (a, lambda g: fit(g @ swap(b.value), a.shape)), (b, lambda g: fit(swap(a.value) @ g, b.shape)))

    def __pow__(self, n):
        return Var(self.value**n, (self, lambda g: g * n * self.value ** (n - 1)))

    def __getitem__(self, index):
        repeats = any(isinstance(i, np.ndarray) for i in (index if isinstance(index, tuple) else (index,)))

        def scatter(g):
            out = np.zeros(self.shape)
            if repeats:
                np.add.at(out, index, g)
            else:
                out[index] = g
            return out
        return Var(self.value[index], (self, scatter))

    def __sub__(self, other):
        return self + of(other) * -1

    def __truediv__(self, other):
        return self * of(other) ** -1

    __radd__, __rmul__ = __add__, __mul__

    def sum(self, axis=None):
        """Sums over an axis, which is kept with size 1."""
        return Var(self.value.sum(axis=axis, keepdims=True), (self, lambda g: np.broadcast_to(g, self.shape)))

    def mean(self, axis):
        return self.sum(axis) * (1 / self.shape[axis])

    def reshape(self, *shape):
        return Var(self.value.reshape(shape), (self, lambda g: g.reshape(self.shape)))

    def transpose(self, *axes):
        return Var(self.value.transpose(axes), (self, lambda g: g.transpose(np.argsort(axes))))


class Constant(Var):
    """An operand that gets no gradient."""


def of(x):
    return x if isinstance(x, Var) else Constant(x)


def elementwise(function, slope):
    """Makes an elementwise operation. `slope` is its derivative, as a function of x and function(x)."""
    def op(x):
        y = function(x.value)
        return Var(y, (x, lambda g: g * slope(x.value, y)))
    return op


erf = np.frompyfunc(math.erf, 1, 1)
exp = elementwise(np.exp, lambda x, y: y)
log = elementwise(np.log, lambda x, y: 1 / x)
tanh = elementwise(np.tanh, lambda x, y: 1 - y * y)
sigmoid = elementwise(lambda x: 1 / (1 + np.exp(-x)), lambda x, y: y * (1 - y))
relu = elementwise(lambda x: np.maximum(x, 0), lambda x, y: x > 0)
cdf = elementwise(lambda x: 0.5 * (1 + erf(x / math.sqrt(2)).astype(float)),
                  lambda x, y: np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def concatenate(parts, axis=-1):
    ends = np.cumsum([0] + [p.shape[axis] for p in parts])
    take = lambda i: lambda g: np.take(g, range(ends[i], ends[i + 1]), axis)
    return Var(np.concatenate([p.value for p in parts], axis), *((p, take(i)) for i, p in enumerate(parts)))


def backward(sums):
    """Adds the gradients of a weighted sum of scalars, [(Var, weight)], to all variables on which they depend."""
    seen, todo = {}, []
    for y, weight in sums:
        y.gradient = np.full(y.shape, weight) + (0 if y.gradient is None else y.gradient)
        todo.append(y)
    while todo:
        y = todo.pop()
        if id(y) not in seen:
            seen[id(y)] = y
            todo += [x for x, _ in y.operands]
    for y in sorted(seen.values(), key=lambda y: -y.order):
        for x, rule in y.operands:
            g = rule(y.gradient)
            x.gradient = g if x.gradient is None else x.gradient + g
