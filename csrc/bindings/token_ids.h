// The ids of one sentence, in the forms in which nearly all callers pass them.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace decoding {

// [1, n]
using TokenIds = pybind11::array_t<int64_t, pybind11::array::c_style>;

inline bool is_list(PyObject* given) { return PyList_Check(given) || PyTuple_Check(given); }

// Of a list or tuple. Nothing where an item is no int.
inline std::optional<TokenIds> ids_of_list(PyObject* row) {
  if (PySequence_Fast_GET_SIZE(row) == 1 && is_list(PySequence_Fast_GET_ITEM(row, 0))) {
    row = PySequence_Fast_GET_ITEM(row, 0);
  }
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(row);
  TokenIds ids({Py_ssize_t{1}, count});
  int64_t* to = ids.mutable_data();
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(row, i);
    int overflow = 0;
    if (!PyLong_CheckExact(item)) return {};
    *to++ = PyLong_AsLongLongAndOverflow(item, &overflow);  // -1 where it is too large
  }
  return ids;
}

// A copy of an array. Nothing where it is no row of whole numbers.
inline std::optional<TokenIds> ids_of_array(const pybind11::array& array) {
  const char kind = array.dtype().kind();
  const bool is_row = array.ndim() == 1 || (array.ndim() == 2 && array.shape(0) == 1);
  if (!is_row || (kind != 'i' && kind != 'u')) return {};
  const pybind11::array_t<int64_t, pybind11::array::c_style | pybind11::array::forcecast> given(
      array);
  TokenIds ids({Py_ssize_t{1}, given.size()});
  std::copy_n(given.data(), given.size(), ids.mutable_data());
  return ids;
}

// A list, tuple or array of whole numbers, [n] or [1, n], n > 0, each of which is at least 0 and
// below `vocab`, and none is `without`. Nothing where it is anything else, which may be ids, too:
// whoever reads all forms of them says what is wrong.
inline std::optional<TokenIds> plain_ids(const pybind11::object& given, int64_t vocab,
                                         int64_t without) {
  std::optional<TokenIds> ids;
  if (is_list(given.ptr())) {
    ids = ids_of_list(given.ptr());
  } else if (pybind11::isinstance<pybind11::array>(given)) {
    ids = ids_of_array(pybind11::reinterpret_borrow<pybind11::array>(given));
  }
  if (!ids || ids->size() == 0) return {};
  const auto fits = [=](int64_t id) { return 0 <= id && id < vocab && id != without; };
  return std::all_of(ids->data(), ids->data() + ids->size(), fits) ? ids : std::nullopt;
}

}  // namespace decoding
