cdef class MessageFields:
    cdef public object topic
    cdef public object body
    cdef public object tags
    cdef public object keys
    cdef public object properties
    cdef public object delay_level
    cdef public object deliver_at
    cdef public object _key
    cdef public bytes own_properties
    cdef public bint is_delayed
    cdef object __weakref__
