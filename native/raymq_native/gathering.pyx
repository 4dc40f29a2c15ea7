"""Add a message to the batch that gathers messages of its topic."""

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(PyTypeObject *, object, void *)
    int PyObject_GenericSetAttr(object, object, object) except -1
    void PyObject_GC_UnTrack(object)


def add_message(dict batches not None, object message not None, type pending not None, Py_ssize_t overhead,
                Py_ssize_t limit):
    """Add a message to the open batch of its topic, and return its pending result.

    Return None, and change nothing, if there is no such batch, if it is taken, or if the message would make it as large
    as `limit`. The check and the change are one step of the interpreter: no other thread and no signal handler can
    come in between.

    Args:
        batches: the open batches by topic; their attributes `is_taken`, `bytes`, `count` and `messages` are used.
        message: has the attributes `topic` and `body`, bytes.
        pending: the class of the result. It is created without calling it, gets the attributes `batch` and `index`, and
            is not tracked by the garbage collector.
        overhead: how many bytes a message counts besides its body.
    """
    cdef tuple nothing = ()
    # Created first: it may start a garbage collection, which may run any code.
    cdef object result = (<PyTypeObject *>pending).tp_new(<PyTypeObject *>pending, nothing, NULL)
    PyObject_GC_UnTrack(result)
    cdef dict fields = message.__dict__
    cdef object batch = batches.get(fields["topic"])
    if batch is None:
        return None
    cdef dict state = batch.__dict__
    if state["is_taken"]:
        return None
    cdef bytes body = fields["body"]
    cdef Py_ssize_t size = <Py_ssize_t>state["bytes"] + len(body) + overhead
    if size >= limit:
        return None
    cdef list messages = state["messages"]
    cdef Py_ssize_t index = state["count"]
    PyObject_GenericSetAttr(result, "batch", batch)
    PyObject_GenericSetAttr(result, "index", index)
    messages.append(message)
    state["count"] = index + 1
    state["bytes"] = size
    return result
