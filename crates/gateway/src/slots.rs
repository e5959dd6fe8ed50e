//! Numbered places for what is open, which tell an old number from a new one.

/// The number of a place, and how often the place was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    index: u32,
    /// Of 24 bits, so that a key and a kind fit into the word that epoll keeps for us.
    generation: u32,
}

impl Key {
    const GENERATIONS: u32 = 1 << 24;

    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        let generation = (bits >> 32) as u32 % Self::GENERATIONS;
        Self { index: bits as u32, generation }
    }
}

/// Places that are used again once they are empty.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(crate) fn insert(&mut self, value: T) -> Key {
        if let Some(index) = self.free.pop() {
            let place = &mut self.places[index as usize];
            place.1 = Some(value);
            return Key { index, generation: place.0 };
        }
        let index = u32::try_from(self.places.len()).expect("limits keep flows far below 2^32");
        self.places.push((0, Some(value)));
        Key { index, generation: 0 }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let (generation, value) = self.places.get(key.index as usize)?;
        value.as_ref().filter(|_| *generation == key.generation)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (generation, value) = self.places.get_mut(key.index as usize)?;
        value.as_mut().filter(|_| *generation == key.generation)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let (generation, value) = self.places.get_mut(key.index as usize)?;
        if *generation != key.generation {
            return None;
        }
        let value = value.take()?;
        *generation = (*generation + 1) % Key::GENERATIONS;
        self.free.push(key.index);
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().enumerate().filter_map(|(index, (generation, value))| {
            let key = Key { index: index as u32, generation: *generation };
            value.as_ref().map(|value| (key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_opens_nothing_new() {
        let mut slots = Slots::default();
        let first = slots.insert("a");
        assert_eq!(slots.remove(first), Some("a"));
        let second = slots.insert("b");
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get(Key::from_bits(second.to_bits())), Some(&"b"));
        assert_eq!(slots.len(), 1);
        assert_eq!(slots.iter().count(), 1);
    }
}
