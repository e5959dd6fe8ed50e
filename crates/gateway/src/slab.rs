//! A slab: values by key, where a key of a removed value never finds a newer one.

/// The index of an entry and its generation: how often the entry was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlabKey {
    index: u32,
    /// 24 bits, so that a key and an event kind fit into the 64-bit word of epoll.
    generation: u32,
}

impl SlabKey {
    const GENERATIONS: u32 = 1 << 24;

    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        let generation = (bits >> 32) as u32 % Self::GENERATIONS;
        Self { index: bits as u32, generation }
    }
}

/// Entries that are reused once they are empty.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> SlabKey {
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index as usize];
            entry.1 = Some(value);
            return SlabKey { index, generation: entry.0 };
        }
        let index = u32::try_from(self.entries.len()).expect("limits keep flows far below 2^32");
        self.entries.push((0, Some(value)));
        SlabKey { index, generation: 0 }
    }

    pub(crate) fn get(&self, key: SlabKey) -> Option<&T> {
        let (generation, value) = self.entries.get(key.index as usize)?;
        value.as_ref().filter(|_| *generation == key.generation)
    }

    pub(crate) fn get_mut(&mut self, key: SlabKey) -> Option<&mut T> {
        let (generation, value) = self.entries.get_mut(key.index as usize)?;
        value.as_mut().filter(|_| *generation == key.generation)
    }

    pub(crate) fn remove(&mut self, key: SlabKey) -> Option<T> {
        let (generation, value) = self.entries.get_mut(key.index as usize)?;
        if *generation != key.generation {
            return None;
        }
        let value = value.take()?;
        *generation = (*generation + 1) % SlabKey::GENERATIONS;
        self.free.push(key.index);
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlabKey, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, (generation, value))| {
            let key = SlabKey { index: index as u32, generation: *generation };
            value.as_ref().map(|value| (key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_opens_nothing_new() {
        let mut slots = Slab::default();
        let first = slots.insert("a");
        assert_eq!(slots.remove(first), Some("a"));
        let second = slots.insert("b");
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get(SlabKey::from_bits(second.to_bits())), Some(&"b"));
        assert_eq!(slots.len(), 1);
        assert_eq!(slots.iter().count(), 1);
    }
}
