//! Which indices and items the children of an array have.

use serde_json::Value;

use crate::contract::array::{Array, ArrayPlace};

/// The indices and items of an array, in the order of its children.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Layout {
    start: u64,
    count: u64,
    items: Option<Vec<Value>>,
    only: Option<Vec<u64>>,
    max_running: Option<u64>,
}

impl Layout {
    /// Of an array that was read.
    pub fn of(array: &Array) -> Self {
        let items = array.items.clone();
        let count = items.as_ref().map_or(array.count.unwrap_or_default(), |items| items.len() as u64);
        Self { start: array.start, count, items, only: array.indices.clone(), max_running: array.max_running }
    }

    /// The array again, as it stands in a spec.
    pub fn array(&self) -> Array {
        Array {
            start: self.start,
            count: self.items.is_none().then_some(self.count),
            items: self.items.clone(),
            indices: self.only.clone(),
            max_running: self.max_running,
        }
    }

    /// How many children there are.
    pub fn len(&self) -> usize {
        match &self.only {
            Some(only) => only.len(),
            None => usize::try_from(self.count).unwrap_or(usize::MAX),
        }
    }

    /// No array that was read is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// At most so many at once.
    pub fn max_running(&self) -> Option<u64> {
        self.max_running
    }

    /// The children's indices, in order.
    pub fn indices(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).map(|place| self.index(place))
    }

    /// A child's index.
    pub fn index(&self, place: usize) -> u64 {
        let only = self.only.as_ref().and_then(|only| only.get(place).copied());
        only.unwrap_or(self.start.saturating_add(place as u64))
    }

    /// What a child's task is told.
    pub fn place(&self, place: usize) -> ArrayPlace {
        let index = self.index(place);
        let item = self.items.as_ref().and_then(|items| {
            let place = usize::try_from(index.checked_sub(self.start)?).ok()?;
            items.get(place).cloned()
        });
        ArrayPlace { index, count: self.count, item }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn layout(array: serde_json::Value) -> Layout {
        Layout::of(&serde_json::from_value(array).unwrap())
    }

    #[test]
    fn children_have_their_index_and_item_also_when_only_some_are_repeated() {
        let plain = layout(json!({"start": 3, "count": 2}));
        assert_eq!(plain.indices().collect::<Vec<_>>(), [3, 4]);
        assert_eq!(plain.place(1), ArrayPlace { index: 4, count: 2, item: None });
        let items = layout(json!({"items": ["a", {"lr": 1}, 7]}));
        assert_eq!(items.place(1), ArrayPlace { index: 1, count: 3, item: Some(json!({"lr": 1})) });
        let some = layout(json!({"start": 5, "items": ["a", "b", "c"], "indices": [5, 7]}));
        assert_eq!(some.len(), 2);
        assert_eq!(some.place(1), ArrayPlace { index: 7, count: 3, item: Some(json!("c")) });
    }
}
