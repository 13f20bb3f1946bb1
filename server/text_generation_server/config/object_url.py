"""URLs of object stores: `s3://bucket/prefix`."""

SCHEME = "s3://"


def is_object_url(name: str) -> bool:
    """Whether a model, an adapter or a drafter of this name lies in an object store."""
    return name.startswith(SCHEME)
