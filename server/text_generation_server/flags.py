"""Flags that several commands of `text-generation-server` share."""

from typing import Annotated, Literal

import typer

from .config.asked_drafter import DrafterKind
from .config.copies import DequantisedCopies
from .config.facts import Dtype
from .config.implementation import ModelImpl
from .config.kv_cache import KvCacheDtype
from .config.server import Attention, LoadFormat
from .config.speculation import MAX_DRAFTS

LogLevel = Literal["TRACE", "DEBUG", "INFO", "WARN", "ERROR"]
ModelId = Annotated[str, typer.Argument(help="Folder of a model, or its id on the hub")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub")]
TrustRemoteCode = Annotated[
    bool, typer.Option(help="Accepted for models whose configuration asks for it; no code of a model is run")
]
Level = Annotated[LogLevel, typer.Option(case_sensitive=False, help="Lowest level that is logged")]
Json = Annotated[bool, typer.Option("--json-output", help="Log JSON records instead of text")]
ExitOnEof = Annotated[
    bool, typer.Option("--exit-on-stdin-eof", help="Stop when standard input ends, as it does with the parent")
]
Impl = Annotated[
    ModelImpl,
    typer.Option(help="Code that computes the model; auto: ours where the family is known, else Transformers"),
]
KvCache = Annotated[
    KvCacheDtype, typer.Option(help="Number type of keys and values; auto: what the checkpoint wants, else the model's")
]
Copies = Annotated[
    DequantisedCopies,
    typer.Option(help="Keep 16-bit copies of weight-only quantised matrices, for prefill; auto: where memory is ample"),
]
Quantize = Annotated[
    str | None, typer.Option(help="Quantise 16-bit weights while they are read: fp8, eetq, bitsandbytes-nf4 and others")
]
MergeAdapter = Annotated[
    str | None,
    typer.Option(help="LoRA adapter that is merged into 16-bit weights while they are read: folder, id or id@revision"),
]
LoraAdapters = Annotated[
    str | None,
    typer.Option(help="LoRA adapters that requests may name: id, id@revision or name=folder, with commas between them"),
]
DtypeFlag = Annotated[Dtype | None, typer.Option(help="Default: float32 on CPU, that of the model on CUDA")]
AttentionFlag = Annotated[
    Attention | None, typer.Option(help="Attention implementation; default: triton on CUDA, torch on CPU")
]
CudaGraphs = Annotated[
    str | None, typer.Option(help="Batch sizes of decode that get a CUDA graph, such as 1,2,4; 0: none")
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Results of a request are bitwise the same in every batch; slower")
]
Speculate = Annotated[
    int,
    typer.Option(
        min=0, max=MAX_DRAFTS, help="Drafts of the next tokens that a step checks of each request at most; 0: none"
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        help="Folder or hub id of what drafts for --speculate: an EAGLE-3 head, Medusa heads, a smaller model, or the "
        "model itself, for its layers of multi-token prediction"
    ),
]
DrafterRevision = Annotated[str | None, typer.Option(help="Branch, tag or commit of --drafter on the hub")]
DrafterMethod = Annotated[
    DrafterKind | None,
    typer.Option(help="What --drafter must be: `eagle3`, `medusa`, `mtp` or `draft_model`; default: whatever it is"),
]
MaxInputTokens = Annotated[int | None, typer.Option(help="Fail early if the model has fewer positions")]
MaxTotalTokens = Annotated[int | None, typer.Option(help="Likewise")]
AutoConvert = Annotated[bool, typer.Option(help="Convert .bin weights, running no code from them")]
ExpertParallel = Annotated[
    bool, typer.Option("--enable-expert-parallel", help="Each rank has whole experts of a mixture; see --sharded")
]
ContextParallel = Annotated[
    bool,
    typer.Option("--enable-context-parallel", help="Each rank keeps some positions of latent attention; see --sharded"),
]
NumShard = Annotated[int, typer.Option(min=1, help="Ranks that the model will have, of all nodes together")]
Format = Annotated[LoadFormat, typer.Option(help="`dummy` makes random weights from config.json alone")]
