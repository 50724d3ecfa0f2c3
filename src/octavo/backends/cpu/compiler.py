"""How kernels are compiled: typed one by one, optimised once, inside the entry point.

Numba by itself optimises every function together with all that it calls, and makes machine code of
it, before its caller does the same again: with five levels of kernels that is minutes. A kernel
here is only lowered to LLVM's language; whoever calls it links it in, and the entry point (an
ordinary ``numba.njit`` function) has the whole optimised in one go. A kernel cannot be called from
Python.
"""

# mypy: disable-error-code="no-untyped-call, misc"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import llvmlite.binding as llvm
import numba
from numba.core.compiler import CompilerBase, DefaultPassBuilder, _LowerResult
from numba.core.compiler_machinery import register_pass
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering, NoPythonBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Function = TypeVar("Function", bound=Callable[..., Any])


def _keep_raw(library: Any) -> None:
    """Let a kernel's library hold its own function only; what it calls joins it when linked."""
    own = library._final_module

    def finalize() -> None:
        library._finalized = True

    def module_for_linking() -> Any:
        if library._shared_module is None:
            # While parts are missing nothing may be dropped as unused ("weak"); then it may.
            merged = _relinked(own, "weak_odr")
            for other in _callees(library, {library}):
                merged.link_in(_relinked(other, "weak_odr"), preserve=True)
            library._shared_module = _relinked(merged, "linkonce_odr")
        return library._shared_module

    library.finalize = finalize
    library.octavo_own = own
    library._get_module_for_linking = module_for_linking


def _callees(library: Any, seen: set[Any]) -> Iterator[Any]:
    """Yield the module of every library that ``library`` calls, and that those call, once."""
    for other in library._linking_libraries:
        if other in seen:
            continue
        seen.add(other)
        if hasattr(other, "octavo_own"):
            yield other.octavo_own
            yield from _callees(other, seen)
        else:
            yield other._get_module_for_linking()


_LINKABLE = (llvm.Linkage.external, llvm.Linkage.weak_odr, llvm.Linkage.linkonce_odr)


def _relinked(module: Any, linkage: str) -> Any:
    """Return a copy whose functions may meet copies of themselves."""
    copy = module.clone()
    for function in copy.functions:
        if not function.is_declaration and function.linkage in _LINKABLE:
            function.linkage = linkage
    return copy


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(NativeLowering):
    """Numba's last pass without optimising, without machine code, without a way in from Python."""

    _name = "octavo_kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        context = state.targetctx
        library = context.codegen().create_library(state.func_id.func_qualname)
        _keep_raw(library)
        state.library = library
        description = PythonFunctionDescriptor.from_specialized_function(
            state.func_ir,
            state.typemap,
            state.return_type,
            state.calltypes,
            mangler=context.mangler,
            inline=state.flags.forceinline,
            noalias=state.flags.noalias,
            abi_tags=[state.flags.get_mangle_string()],
        )
        with context.push_code_library(library):
            lower = Lower(context, library, description, state.func_ir, metadata=state.metadata)
            lower.lower()
        # Numba wants a built-in function as the overload's identity; this one is never called.
        identity = [description].append
        context.insert_user_function(identity, description, [library])
        state["cr"] = _LowerResult(description, lower.call_helper, cfunc=identity, env=lower.env)
        return True


class _KernelCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes = [
            (_KernelLowering if step is NativeLowering else step, text)
            for step, text in pipeline.passes
        ]
        assert any(step is _KernelLowering for step, _ in passes), NoPythonBackend
        pipeline.passes[:] = passes
        pipeline.finalize()
        return [pipeline]


OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": False, "_nrt": False}
"""Of every function, entry points too: no GIL, no reassociated floats, no counted references."""


def kernel(function: Function) -> Function:
    """Compile ``function`` as part of those that call it: no GIL, no fastmath, no checks."""
    compiled: Function = numba.njit(pipeline_class=_KernelCompiler, **OPTIONS)(function)
    return compiled


def inlined(function: Function) -> Function:
    """As `kernel`, and always inlined: for helpers that take or return vectors."""
    compiled: Function = numba.njit(pipeline_class=_KernelCompiler, forceinline=True, **OPTIONS)(
        function
    )
    return compiled
