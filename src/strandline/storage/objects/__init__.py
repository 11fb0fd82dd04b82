"""Named bytes in a folder, in a bucket or in memory. Nothing else in Strandline talks to obstore.

A name appears only when its bytes are whole and durable, and `create` never touches a name that is there. So
a process killed at any instant leaves at most a staged object: `.staged/<random>` in the same folder or
bucket, which `scan` does not show and `leftovers` does. (Of an upload to a bucket that was cut short the
server keeps parts that no listing shows; a lifecycle rule of the bucket, "abort incomplete multipart
uploads", removes those.)

    /var/lib/strandline/content, file:///var/lib/...    a folder; needs nothing installed
    s3://bucket/prefix, gs://bucket/prefix, az://...    a bucket; options, environment as obstore takes them
    memory:                                             this process only

Times are those of the folder's or the bucket's own clock.
"""

from strandline.storage.objects.bucket import MAX_STREAM_BYTES, BucketObjects, ObjectTooLarge
from strandline.storage.objects.folder import FolderObjects
from strandline.storage.objects.memory import MemoryObjects
from strandline.storage.objects.object import (
    CHUNK_BYTES,
    PART_BYTES,
    STAGED,
    Chunks,
    Name,
    ObjectInfo,
    Objects,
    check_object_name,
)
from strandline.storage.objects.place import open_objects

__all__ = [
    "CHUNK_BYTES",
    "MAX_STREAM_BYTES",
    "PART_BYTES",
    "STAGED",
    "BucketObjects",
    "Chunks",
    "FolderObjects",
    "MemoryObjects",
    "Name",
    "ObjectInfo",
    "ObjectTooLarge",
    "Objects",
    "check_object_name",
    "open_objects",
]
