"""How kernels are compiled: typed one by one, optimised once, inside the entry point.

Numba by itself optimises every function together with all that it calls, and makes machine code of
it, before its caller does the same again: with five levels of kernels that is minutes. A kernel
here is only lowered to LLVM's language, by those of Numba's passes that do something for it;
whoever calls it links it in, and the entry point (an ordinary ``numba.njit`` function) has the
whole optimised in one go. A kernel cannot be called from Python.
"""

# mypy: disable-error-code="no-untyped-call, misc"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import llvmlite.binding as llvm
import numba
import numpy as np
from numba.core import cgutils
from numba.core import typed_passes as typed
from numba.core import untyped_passes as untyped
from numba.core.compiler import CompilerBase, _LowerResult
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.lowering import Lower

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


class _Lower(Lower):
    """Numba's, for functions that count no references and have no debugger's notes."""

    def storevar(self, value: Any, name: str, argidx: Any = None) -> None:  # noqa: ARG002
        self._alloca_var(name, self.typeof(name))
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:  # noqa: ARG002
        return cgutils.alloca_once(self.builder, lltype, name=name)


@register_pass(mutates_CFG=False, analysis_only=False)
class _KernelLowering(typed.NativeLowering):
    """Numba's last pass without optimising, without machine code, without a way in from Python."""

    _name = "octavo_kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        context = state.targetctx
        library = context.codegen().create_library(state.func_id.func_qualname)
        _keep_raw(library)
        state.library = library
        state.type_annotation = None  # for Numba's printed listings
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
            lower = _Lower(context, library, description, state.func_ir, metadata=state.metadata)
            lower.lower()
        # Numba wants a built-in function as the overload's identity; this one is never called.
        identity = [description].append
        context.insert_user_function(identity, description, [library])
        state["cr"] = _LowerResult(description, lower.call_helper, cfunc=identity, env=lower.env)
        return True


_PASSES: Final = (
    untyped.TranslateByteCode,
    untyped.FixupArgs,
    untyped.IRProcessing,
    untyped.RewriteSemanticConstants,
    untyped.DeadBranchPrune,
    untyped.GenericRewrites,
    untyped.ReconstructSSA,
    typed.NopythonTypeInference,
    typed.PreLowerStripPhis,
    _KernelLowering,
    typed.NoPythonBackend,
)
"""Of Numba's two dozen: kernels have no closures, no ``with``, no array expressions, no lists."""


class _KernelCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        pipeline = PassManager("kernel")
        for step in _PASSES:
            pipeline.add_pass(step, step._name)
        pipeline.finalize()
        return [pipeline]


OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": False, "_nrt": False}
"""Of every function, entry points too: no GIL, no reassociated floats, no counted references."""


INT_ZERO: Any = np.int64(0)
"""For arguments: given a literal 0, Numba compiles the function once more, for that literal."""


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
