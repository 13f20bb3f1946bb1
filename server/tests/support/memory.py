"""Readings of memory that tests make up."""

GIB = 2**30
MIB = 2**20


class ReadMemory:
    """A device with weights and others on it, of which a step takes some. All sizes in bytes."""

    name = "cuda:7"
    shared = False

    def __init__(self, total: int = 24 * GIB, others: int = GIB, weights: int = 8 * GIB, step: int = GIB) -> None:
        self._total = total
        self._others = others
        self._weights = weights
        self._step = step
        self.garbage = 0
        """Held for no tensor until it is released."""
        self.graphs = 0
        """What the driver keeps of graphs."""

    def total(self) -> int:
        return self._total

    def free(self) -> int:
        return self._total - self._others - self.held() - self.graphs

    def held(self) -> int:
        return self._weights + self.garbage

    def begin_peak(self) -> None:
        return

    def peak(self) -> int:
        return self.held() + self._step

    def release(self) -> None:
        self.garbage = 0


class ReadHost(ReadMemory):
    """The machine's: `available` bytes are left."""

    name = "the machine"
    shared = True

    def __init__(self, available: int) -> None:
        super().__init__(total=available, others=0, weights=0, step=0)
