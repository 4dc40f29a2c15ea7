"""The fields of messages and of their pending results, and the step that adds a message to an open batch."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from types import MappingProxyType

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        Py_ssize_t tp_basicsize
        Py_ssize_t tp_dictoffset
        object (*tp_new)(PyTypeObject *, object, void *)
    void PyObject_GC_UnTrack(object)
    PyTypeObject *Py_TYPE(object)
    PyObject *PyDict_GetItemWithError(object, object) except? NULL

cdef enum:
    # Topics that were checked once; longer bodies are checked by the caller's own code.
    MAX_TOPICS = 1024
    MAX_BODY_BYTES = 1 << 22

cdef set checked_topics = set()
cdef object no_properties = MappingProxyType({})


@cython.no_gc
@cython.auto_pickle(False)
cdef class MessageFields:
    """The fields of one message.

    They refer to texts and bytes only, so the garbage collector does not track objects of a class that adds none:
    it would traverse thousands of messages again and again.

    A message with a topic that was checked before and with a body alone is complete at once. For all others, `__init__`
    calls the method `_initialize` of the derived class with all arguments, which sets all fields.
    """

    def __init__(self, topic, body, tags=None, keys=(), properties=None, delay_level=0, deliver_at=None, *,
                 unique_key=None):
        if Py_TYPE(self).tp_basicsize == (<PyTypeObject *>MessageFields).tp_basicsize and not Py_TYPE(self).tp_dictoffset:
            PyObject_GC_UnTrack(self)
        if (
            type(body) is bytes and 0 < len(<bytes>body) <= MAX_BODY_BYTES
            and type(topic) is str and topic in checked_topics
            and tags is None and type(keys) is tuple and not <tuple>keys and properties is None
            and type(delay_level) is int and delay_level == 0 and deliver_at is None and unique_key is None
        ):
            self.topic = topic
            self.body = body
            self.keys = keys
            self.properties = no_properties
            self.delay_level = delay_level
            self.own_properties = b""
            self.is_delayed = False
            return
        self._initialize(topic, body, tags, keys, properties, delay_level, deliver_at, unique_key)
        if type(self.topic) is str:
            if len(checked_topics) >= MAX_TOPICS:
                checked_topics.clear()
            checked_topics.add(self.topic)


@cython.auto_pickle(False)
cdef class PendingFields:
    """The batch of a pending result, and its index in it. Other attributes are created when they are first set.

    The garbage collector does not track it until `track`: the batch does not refer to it before.
    """

    cdef readonly object batch
    cdef readonly Py_ssize_t index
    cdef dict __dict__
    cdef object __weakref__

    def __init__(self, batch, Py_ssize_t index):
        self.batch = batch
        self.index = index
        PyObject_GC_UnTrack(self)


def number_messages(list messages not None, int64_t first):
    """Give each message without a unique key the next number from `first`; return the keys or numbers of all.

    Return a range if all of them got a number now. The messages are `MessageFields`.
    """
    cdef Py_ssize_t i, count = len(messages)
    cdef bint all_new = True
    cdef MessageFields message
    for i in range(count):
        message = <MessageFields?>messages[i]
        if message._key is None:
            message._key = first + i
        else:  # it had one, or is listed twice
            all_new = False
    return range(first, first + count) if all_new else [(<MessageFields>each)._key for each in messages]


@cython.auto_pickle(False)
cdef class BatchFields:
    """What is added to a batch: its messages, their number, and about how many bytes they take."""

    cdef public list messages
    cdef public Py_ssize_t count
    cdef public Py_ssize_t bytes
    cdef public bint is_taken


cdef class OpenBatches(dict):
    """The open batches (`BatchFields`) by topic or another key.

    Args:
        pending: the class of the results, derived from `PendingFields`.
        overhead: how many bytes a message counts besides its body.
        limit: a batch of so many bytes is not added to here.
    """

    cdef PyTypeObject *pending
    cdef Py_ssize_t overhead
    cdef Py_ssize_t limit
    #: No message is added here while this is set.
    cdef public bint is_full

    def __init__(self, type pending not None, Py_ssize_t overhead, Py_ssize_t limit):
        if not issubclass(pending, PendingFields):
            raise TypeError("the class of the results is not derived from PendingFields")
        self.pending = <PyTypeObject *>pending  # the module of that class keeps it
        self.overhead = overhead
        self.limit = limit

    def add(self, message):
        """Add a message to the open batch of its topic, and return its pending result.

        Return None, and change nothing, if there is no such batch, if it is taken, if the message would make it as
        large as `limit`, or if the message is delayed or no message. The check and the change are one step of the
        interpreter: no other thread and no signal handler can come in between.
        """
        if self.is_full or not isinstance(message, MessageFields):
            return None
        # Created first: it may start a garbage collection, which may run any code.
        cdef PendingFields result = self.pending.tp_new(self.pending, (), NULL)
        PyObject_GC_UnTrack(result)
        cdef MessageFields fields = <MessageFields>message
        cdef PyObject *found = PyDict_GetItemWithError(self, fields.topic)
        if found is NULL or fields.is_delayed:
            return None
        cdef BatchFields batch = <BatchFields?><object>found
        cdef bytes body = fields.body
        cdef Py_ssize_t size = batch.bytes + len(body) + self.overhead
        if batch.is_taken or size >= self.limit:
            return None
        result.batch = batch
        result.index = batch.count
        batch.messages.append(message)
        batch.count += 1
        batch.bytes = size
        return result
