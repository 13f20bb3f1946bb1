//! Token mask: which tokens may come next.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use toktrie::SimpleVob;

/// Up to this many ids a mask is written as a list.
const LIST: usize = 256;

/// The tokens that a grammar allows at one position. Equal masks compare and hash equal; cheap to clone.
#[derive(Debug, Clone)]
pub struct Mask {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    form: Form,
    hash: u64,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Form {
    All,
    Bits(Vec<u8>),
    Only(Vec<u32>),
    Except(Vec<u32>),
}

/// A mask in its smallest form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskForm<'a> {
    /// Every token.
    All,
    /// Bit `i % 8` (lowest first) of byte `i / 8` is token `i`; one bit for each id of the vocabulary, then zeros.
    Bits(&'a [u8]),
    /// These ids, ascending; at most 256.
    Only(&'a [u32]),
    /// All ids but these, ascending; at most 256.
    Except(&'a [u32]),
}

impl Mask {
    pub fn form(&self) -> MaskForm<'_> {
        match &self.inner.form {
            Form::All => MaskForm::All,
            Form::Bits(bits) => MaskForm::Bits(bits),
            Form::Only(ids) => MaskForm::Only(ids),
            Form::Except(ids) => MaskForm::Except(ids),
        }
    }

    /// Whether token `id`, which must be one of the vocabulary, is allowed.
    pub fn allows(&self, id: u32) -> bool {
        match &self.inner.form {
            Form::All => true,
            Form::Bits(bits) => bits
                .get(id as usize / 8)
                .is_some_and(|byte| byte >> (id % 8) & 1 == 1),
            Form::Only(ids) => ids.binary_search(&id).is_ok(),
            Form::Except(ids) => ids.binary_search(&id).is_err(),
        }
    }

    /// Whether no token of a vocabulary of `vocab_size` may come.
    pub fn is_empty(&self, vocab_size: u32) -> bool {
        match &self.inner.form {
            Form::All => vocab_size == 0,
            Form::Bits(bits) => bits.iter().all(|&byte| byte == 0),
            Form::Only(ids) => ids.is_empty(),
            Form::Except(ids) => ids.len() >= vocab_size as usize,
        }
    }

    /// Every token.
    pub fn all() -> Self {
        Self::of(Form::All)
    }

    /// These tokens, of a vocabulary with `vocab_size` ids.
    pub fn only(ids: impl IntoIterator<Item = u32>, vocab_size: u32) -> Self {
        let mut tokens = SimpleVob::alloc(vocab_size as usize);
        for id in ids.into_iter().filter(|&id| id < vocab_size) {
            tokens.allow_token(id);
        }
        Self::new(&tokens)
    }

    /// The same without `ids`, of a vocabulary with `vocab_size` ids.
    #[must_use]
    pub fn without(&self, ids: &[u32], vocab_size: u32) -> Self {
        let mut except = match &self.inner.form {
            Form::All => Vec::new(),
            Form::Except(except) => except.clone(),
            Form::Only(only) => {
                let left = only.iter().filter(|id| !ids.contains(id));
                return Self::of(Form::Only(left.copied().collect()));
            }
            Form::Bits(_) => return self.cleared(ids, vocab_size),
        };
        except.extend(ids);
        except.sort_unstable();
        except.dedup();
        if except.len() > LIST {
            return self.cleared(ids, vocab_size);
        }
        Self::of(Form::Except(except))
    }

    fn cleared(&self, ids: &[u32], vocab_size: u32) -> Self {
        let mut tokens = SimpleVob::alloc(vocab_size as usize);
        for id in (0..vocab_size).filter(|&id| self.allows(id)) {
            tokens.allow_token(id);
        }
        for &id in ids.iter().filter(|&&id| id < vocab_size) {
            tokens.disallow_token(id);
        }
        Self::new(&tokens)
    }

    pub(crate) fn new(tokens: &SimpleVob) -> Self {
        let (size, allowed) = (tokens.len(), tokens.num_set());
        let form = if allowed == size {
            Form::All
        } else if allowed <= LIST {
            let mut ids = Vec::with_capacity(allowed);
            tokens.iter_set_entries(|id| ids.push(id as u32));
            Form::Only(ids)
        } else if size - allowed <= LIST {
            let mut ids = Vec::with_capacity(size - allowed);
            tokens.iter_unset_entries(|id| ids.push(id as u32));
            Form::Except(ids)
        } else {
            let words = tokens.as_slice().iter();
            let mut bits: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
            bits.truncate(size.div_ceil(8));
            Form::Bits(bits)
        };
        Self::of(form)
    }

    fn of(form: Form) -> Self {
        let mut hasher = DefaultHasher::new();
        form.hash(&mut hasher);
        let hash = hasher.finish();
        Self {
            inner: Arc::new(Inner { form, hash }),
        }
    }
}

impl PartialEq for Mask {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
            || self.inner.hash == other.inner.hash && self.inner.form == other.inner.form
    }
}

impl Eq for Mask {}

impl Hash for Mask {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.inner.hash);
    }
}
